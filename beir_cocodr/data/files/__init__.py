"""Files and folders that collections are read from."""
