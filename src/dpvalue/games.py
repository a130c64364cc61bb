"""Games of your own and their semivalues: exact for few players, else from sampled permutations."""

from dpvalue.valuation.estimates import Estimate
from dpvalue.valuation.games import FunctionGame, Game, ListedGame, value_game
from dpvalue.valuation.semivalues import Semivalue

__all__ = ["Estimate", "FunctionGame", "Game", "ListedGame", "Semivalue", "value_game"]
