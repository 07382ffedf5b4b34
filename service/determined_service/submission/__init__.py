"""Creates new experiments, and continues ended ones."""
