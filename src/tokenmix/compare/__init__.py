"""Fair comparison of architectures: one budget, data order and seeds for all, and statistics that know the noise."""
