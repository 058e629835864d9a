#!/bin/sh
# Makes a git repository with a small Python program, its tests, and a mistake in it.
set -eu
directory=${1:?usage: make-calculator.sh DIRECTORY}
mkdir "$directory"
cd "$directory"
cat > calculator.py <<'END'
"""A calculator for what shops need."""


def total(prices, discount=0):
    """The sum of all prices, less a discount in percent."""
    return sum(prices) * (1 - discount / 10)


def mean(prices):
    return sum(prices) / len(prices) if prices else 0
END
cat > test_calculator.py <<'END'
import unittest

from calculator import mean, total


class Calculator(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2, 3]), 6)

    def test_discount(self):
        self.assertAlmostEqual(total([50, 50], discount=10), 90)

    def test_mean(self):
        self.assertEqual(mean([1, 2, 3]), 2)
        self.assertEqual(mean([]), 0)


if __name__ == "__main__":
    unittest.main()
END
git init -q -b main .
git add .
git -c user.name=Example -c user.email=example@example.com commit -q -m "A calculator"
