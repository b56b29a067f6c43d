"""dsmoe: converts DeepSeekMoE checkpoints and proves that the result is right. The package holds the program alone."""
