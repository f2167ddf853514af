"""Every table of the three papers as a recipe: `tokenmix reproduce NAME --scale tiny|bench|paper`."""

from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage, Verdict, get_recipe, load_recipes

__all__ = ["Claim", "Recipe", "Row", "Scale", "Stage", "Verdict", "get_recipe", "load_recipes"]
