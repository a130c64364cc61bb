"""Parties that differ in who their records are: cells, the truth by retraining, baselines, tables."""
