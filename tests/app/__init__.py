"""A Django app with the jobs and models of the tests."""
