"""Device memory through the CUDA driver's virtual memory calls."""
