"""The task families, one file each; importing a file registers its tasks."""
