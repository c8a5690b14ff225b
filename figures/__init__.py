"""Every figure and table of the project, drawn from small committed data: `python -m figures`."""
