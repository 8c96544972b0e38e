"""One owner, many processes: the owner of a directory, its socket, and who dials it."""
