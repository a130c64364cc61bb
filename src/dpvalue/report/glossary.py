"""The glossary: one line for each term, shown by the report's tooltips and listed in docs/glossary.md."""

from __future__ import annotations

from dpvalue.display import safe

FIELD = {
    "party": "Owner of the data that is valued: a row, a data set or an organisation.",
    "record": "One row of a party's data.",
    "unit": "What is protected: each party, each record or each person.",
    "neighbours": "Data that differs in one unit: set to zero (zero_out) or replaced (replace).",
    "epsilon": "Bound on what all releases reveal about one unit. Smaller is safer.",
    "delta": "Probability with which the bound of epsilon may fail. Zero for Laplace noise.",
    "mu": "Parameter of Gaussian differential privacy. Smaller is safer.",
    "budget": "The epsilon and delta that the releases of a run may spend.",
    "sensitivity": "Largest change of a release when one unit changes.",
    "clipping norm": "Bound on the length of one unit's contribution. Longer ones are scaled down.",
    "noise multiplier": "Noise scale divided by sensitivity.",
    "mechanism": "Law of the noise in the releases: Laplace or Gaussian.",
    "attacker's advantage": "How well releases tell neighbours apart, from 0 (a coin flip) to 1.",
    "post-processing": "Computing from releases alone. It spends no budget.",
    "public set": "Trusted rows that models are evaluated on. They are not protected.",
    "utility": "What a model is worth on the public set, such as its negated loss.",
    "coalition": "Set of parties whose data is used together.",
    "marginal": "Change of utility when a party joins a coalition.",
    "semivalue": "Weighted mean of marginals: Shapley, Banzhaf, Beta Shapley, leave-one-out.",
    "value": "Semivalue of a party. Above zero, the party improves the model.",
    "permutation": "Order in which parties join. Values are means over permutations.",
    "interval": "Range that holds the value without noise, with a confidence of 95%.",
    "DP noise": "Standard deviation of a value due to the privacy noise.",
    "MC error": "Standard error of a value due to the sampling of permutations.",
    "rank": "Place of a party when values are sorted. The highest value has rank 1.",
    "payout": "Share of a total in proportion to values. Values below zero count as zero.",
    "AUC": "Probability that a corrupted party has a lower value than a clean one.",
    "precision": "Share of corrupted parties among the lowest values.",
}
"""Terms of the field."""

OURS = {
    "coordinator": "Makes the job, receives the releases and computes the values.",
    "job": "File that specifies what each party releases, and with how much noise.",
    "request": "Question of one round of a job: the models at which gradients are taken.",
    "release": "Noisy answer of a party to a request. Nothing else leaves a party.",
    "table": "All releases combined, one row per party. Every value is computed from it.",
    "game": "Rule that assigns a worth to each coalition: refit, steps, scores or counts in trees.",
    "description": "Release of a party in the refit game: a noisy mean gradient and its size.",
    "rehearsal": "Trial on public rows that predicts how good values will be.",
    "ceiling": "Largest AUC that a budget allows without a trusted curator.",
    "ledger": "A party's file that records all releases and enforces its budget.",
    "head": "Latest hash of a ledger. Stored elsewhere, it reveals a rollback.",
    "seed": "Number that makes public randomness repeatable. Secure noise has none.",
}
"""Terms of this library."""

TERMS = FIELD | OURS


def tooltip(term: str) -> str:
    """Return the attribute of an element that shows the meaning of a term; raises KeyError for an unknown term.

    >>> tooltip("record")
    ' title="One row of a party&#x27;s data."'
    """
    return f' title="{safe(TERMS[term])}"'
