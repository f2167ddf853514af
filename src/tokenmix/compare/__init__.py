"""Fair comparison of architectures: the same budget, data order and seeds for each, and statistics that know the noise."""
