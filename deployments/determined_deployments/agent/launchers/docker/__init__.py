"""Jobs in containers of a Docker engine on the agent's machine."""
