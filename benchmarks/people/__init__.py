"""What workspaces, groups and roles cost."""
