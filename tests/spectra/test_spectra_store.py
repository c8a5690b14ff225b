"""The folder of a run: the same as memory, whole after any kill, replaced on resume, refused when it is not ours."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from spectra_models import TinyLM, train

import spectra
from spectra import InputError, schema


def make():
    model = TinyLM()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


@pytest.fixture
def store(tmp_path):
    model, optimizer = make()
    with spectra.GradientRecorder(model, optimizer, every=2, store=tmp_path / "run" / "spectra"):
        train(model, optimizer, range(7))
    return tmp_path / "run" / "spectra"


def assert_same(a, b):
    pd.testing.assert_frame_equal(a.frame, b.frame)
    for step, layer in zip(a.frame["step"], a.frame["layer"], strict=True):
        np.testing.assert_array_equal(a.values(step, layer), b.values(step, layer))


def test_a_store_holds_what_memory_holds(store):
    model, optimizer = make()
    with spectra.GradientRecorder(model, optimizer, every=2) as rec:
        train(model, optimizer, range(7))
    run = spectra.open(store)
    assert_same(run, rec.run)
    assert run.steps == [0, 2, 4, 6] and len(run.frame) == 4 * 8
    assert list(run.frame.columns[:8]) == ["step", "layer", "kind", "part", "quantity", "rows", "cols", "tokens"]
    assert_same(spectra.open(store.parent), run)


def test_values_are_float32_on_disk_and_any_reader_opens_them(store):
    table = pq.read_table(store / "parts" / "part-000000002-000000002.parquet")
    assert str(table.schema.field("values").type) == "list<element: float>"
    assert set(pd.read_parquet(store / "parts")["step"]) == {0, 2, 4, 6}


def test_a_resumed_run_ends_with_the_same_records(store, tmp_path):
    model, optimizer = make()
    other = tmp_path / "other"
    with spectra.GradientRecorder(model, optimizer, every=2, store=other):
        train(model, optimizer, range(3))
        saved = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
        train(model, optimizer, range(50, 53))
    assert spectra.open(other).steps == [0, 2, 4]
    model, optimizer = make()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    with spectra.GradientRecorder(model, optimizer, every=2, store=other, start_step=3):
        assert spectra.open(other).steps == [0, 2]
        model, optimizer = make()
        train(model, optimizer, range(3))
    with spectra.GradientRecorder(model, optimizer, every=2, store=other, start_step=3):
        train(model, optimizer, range(3, 7))
    assert_same(spectra.open(other), spectra.open(store))


def test_compaction_changes_nothing_and_can_be_resumed_into(store):
    before = spectra.open(store)
    before.frame, before.values(4, "wpe.weight")
    assert spectra.compact(store) == 4
    assert [p.name for p in store.glob("parts/*.parquet")] == ["part-000000000-000000006.parquet"]
    pd.testing.assert_frame_equal(spectra.open(store).frame, before.frame)
    assert spectra.compact(store) == 0
    model, optimizer = make()
    with spectra.GradientRecorder(model, optimizer, every=1, store=store, start_step=5):
        train(model, optimizer, range(1))
    run = spectra.open(store)
    assert run.steps == [0, 2, 4, 5]
    assert run.values(4, "wpe.weight").size == 12
    assert spectra.compact(store) == 2


def test_a_kill_between_compaction_and_clean_up_leaves_each_record_once(store):
    single = (store / "parts" / "part-000000002-000000002.parquet").read_bytes()
    spectra.compact(store)
    (store / "parts" / "part-000000002-000000002.parquet").write_bytes(single)
    run = spectra.open(store)
    assert run.steps == [0, 2, 4, 6] and len(run.frame) == 32


def test_a_damaged_part_is_named_and_the_rest_is_served(store):
    path = store / "parts" / "part-000000002-000000002.parquet"
    path.write_bytes(path.read_bytes()[:500])
    run = spectra.open(store)
    with pytest.warns(UserWarning, match=r"part-000000002-000000002\.parquet cannot be read"):
        assert run.steps == [0, 4, 6]
    assert len(run.problems) == 1


def test_foreign_empty_and_newer_folders_are_refused(store, tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        spectra.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no manifest\.json"):
        spectra.open(tmp_path / "empty")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match=r"holds other files \(thesis\.tex\)"):
        spectra.GradientRecorder(TinyLM(), store=foreign).start()
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    manifest = json.loads((store / "manifest.json").read_text())
    (store / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 99}))
    with pytest.raises(InputError, match=r"schema version 99, written by spectra .*install that version"):
        spectra.open(store)
    (store / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        spectra.open(store)
    (store / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="not of a spectra store"):
        spectra.open(store)


def test_an_older_store_is_read_with_nulls_for_what_it_lacks(store):
    path = store / "parts" / "part-000000000-000000000.parquet"
    table = pq.read_table(path).drop_columns(["weyl_rank", "cross_values"])
    pq.write_table(table, path)
    run = spectra.open(store)
    assert run.frame["weyl_rank"].isna().all() and len(run.values(0, "wpe.weight")) == 12
    with pytest.raises(InputError, match="without split_half"):
        run.cross_values(0, "wpe.weight")


def test_two_live_recorders_on_one_folder_are_refused(tmp_path):
    with spectra.GradientRecorder(TinyLM(), store=tmp_path):
        with pytest.raises(InputError, match="live recorder"):
            spectra.GradientRecorder(TinyLM(), store=tmp_path).start()
        with pytest.raises(InputError, match="live recorder"):
            spectra.store.Store(tmp_path, 0, {})
    with spectra.GradientRecorder(TinyLM(), store=tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_unwritable_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be used"):
        spectra.GradientRecorder(TinyLM(), store=tmp_path / "inside").start()


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        spectra.GradientRecorder(TinyLM(), store=tmp_path / "file" / "inside").start()


def test_a_full_disk_ends_the_recording_not_the_training(tmp_path, monkeypatch):
    model, optimizer = make()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with spectra.GradientRecorder(model, optimizer, every=2, store=tmp_path):
        train(model, optimizer, range(2))
        monkeypatch.setattr(pq, "write_table", full)
        with pytest.warns(UserWarning, match="stopped recording at step 2.*No space left"):
            train(model, optimizer, range(2, 5))
    monkeypatch.undo()
    assert spectra.open(tmp_path).steps == [0]
    assert not list(tmp_path.glob("**/.*writing"))


def test_a_part_appears_by_renaming_only(store, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    before = sorted(store.rglob("*.*"))
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        spectra.store._write_table(store, 8, 8, pq.read_table(store / "parts" / "part-000000002-000000002.parquet"))
    assert sorted(store.rglob("*.*")) == before


def test_unknown_steps_layers_and_quantities_help(store):
    run = spectra.open(store)
    with pytest.raises(InputError, match=r"did you mean 'wpe\.weight'"):
        run.values(0, "wpe.wieght")
    with pytest.raises(InputError, match="captured steps: 0, 2, 4, 6"):
        run.values(1, "wpe.weight")
    with pytest.raises(InputError, match="'momentum' was not recorded"):
        run.values(0, "wpe.weight", quantity="momentum")
    with pytest.raises(InputError, match="without split_half"):
        run.noise_values(0, "wpe.weight")


def test_the_manifest_says_where_the_numbers_come_from(store):
    manifest = spectra.open(store).manifest
    assert manifest["schema_version"] == schema.VERSION and manifest["model"] == "TinyLM"
    assert set(manifest["versions"]) == {"spectra", "torch", "numpy", "python"}
    reasons = {entry["layer"]: entry["reason"] for entry in manifest["inventory"]}
    assert reasons["block.ln.weight"] == "1-D" and reasons["wte.weight"] == "" and len(reasons) == 10


@pytest.mark.extra
def test_duckdb_and_polars_read_the_parts_directly(store):
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    files = str(store / "parts" / "*.parquet")
    expected = spectra.open(store).values(4, "wpe.weight")
    query = f"select values from '{files}' where step = 4 and layer = 'wpe.weight'"
    np.testing.assert_array_equal(duckdb.sql(query).fetchall()[0][0], expected)
    rows = polars.read_parquet(files).filter((polars.col("step") == 4) & (polars.col("layer") == "wpe.weight"))
    np.testing.assert_array_equal(rows["values"][0].to_numpy(), expected)


def test_a_thousand_captures_of_gpt2_small_stay_under_400_mb(tmp_path):
    rng = np.random.default_rng(0)
    layers = [f"h.{i // 4}.layer{i % 4}.weight" for i in range(48)] + ["wte.weight", "wpe.weight"]
    names = layers + [f"h.{i // 3}.attn.c_attn.weight[{'qkv'[i % 3]}]" for i in range(36)]
    numbers = schema.RANKS + [f"{null}_{name}" for name in schema.RANKS for null in ("chance",)]
    records = [
        {"step": 0, "layer": name, "values": np.sort(rng.random(768))[::-1]} | dict.fromkeys(numbers, rng.random())
        for name in names
    ]
    writer = spectra.store.Store(tmp_path, 0, {})
    writer.append(0, records)
    writer.close()
    (part,) = tmp_path.glob("parts/*.parquet")
    assert 1000 * part.stat().st_size < 400e6


RESIDENT = """
import gc, resource, torch, spectra
from spectra_models import TinyLM, train
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
with spectra.GradientRecorder(model, optimizer, every=1, store=FOLDER):
    train(model, optimizer, range(100))
    before = resident()
    train(model, optimizer, range(100, 600))
    print(resident() - before)
"""


@pytest.mark.slow
def test_memory_is_flat_over_500_captures(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    code = RESIDENT.replace("FOLDER", repr(str(tmp_path)))
    command = [sys.executable, "-W", "ignore", "-c", code]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert int(printed) < 8e6


WRITER = """
import sys, torch, spectra
from spectra_models import TinyLM, train
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
with spectra.GradientRecorder(model, optimizer, every=1, store=sys.argv[1]):
    print("ready", flush=True)
    train(model, optimizer, range(100000))
"""


def kill_while_storing(folder, seconds):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    writer = subprocess.Popen([sys.executable, "-W", "ignore", "-c", WRITER, str(folder)], env=environment, stdout=-1)
    writer.stdout.readline()
    time.sleep(seconds)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()


@pytest.mark.parametrize("kills", [2, pytest.param(18, marks=pytest.mark.slow)])
def test_kill_9_at_any_moment_leaves_a_readable_store(tmp_path, kills):
    for kill in range(kills):
        kill_while_storing(tmp_path, 0.05 + 0.037 * kill)
        run = spectra.open(tmp_path)
        assert run.steps == list(range(len(run.steps))) and run.problems == []
        assert len(run.frame) == 8 * len(run.steps)
        for step in run.steps:
            run.values(step, "wpe.weight")
