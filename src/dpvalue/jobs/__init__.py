"""From files of rows to a folder of results."""
