"""The half of the machine test that runs on the developer's machine."""
