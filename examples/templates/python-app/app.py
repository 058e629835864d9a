"""Counts words: POST a text to /count."""

from collections import Counter

from flask import Flask, jsonify, request

web = Flask(__name__)


def count(text: str) -> dict[str, int]:
    return dict(Counter(text.split()))


@web.get("/")
def about():
    return jsonify(app="python-app")


@web.post("/count")
def words():
    return jsonify(count(request.get_data(as_text=True)))
