"""Launch layers: ``python3 -m determined.launch.<name> … script.py`` starts a trial's processes."""
