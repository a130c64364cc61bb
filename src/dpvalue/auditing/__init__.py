"""Attacks on a claim: canaries, membership inference, and the bounds that they prove."""
