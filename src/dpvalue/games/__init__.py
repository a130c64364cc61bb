"""Games of players, and their semivalues: `value_game` solves any of them."""

from dpvalue.games.estimates import Estimate
from dpvalue.games.semivalues import Semivalue
from dpvalue.games.solving import FunctionGame, Game, ListedGame, value_game

__all__ = ["Estimate", "FunctionGame", "Game", "ListedGame", "Semivalue", "value_game"]
