"""One module per framework that writes event files."""
