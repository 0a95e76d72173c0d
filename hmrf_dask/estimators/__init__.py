"""Estimators with scikit-learn's interface over the one loop."""
