"""One short-lived worker of the grid search: takes tasks until none is left, then ends.

A task is one point of the grid: a pipeline of term counts, tf-idf and a linear classifier is fitted and scored by cross
validation (the thesis' GridSearch with scikit-learn, 2.6.6.1). The result goes back under the task's number.
"""

from __future__ import annotations

import json

import redis
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline

FOLDS = 3
storage = redis.Redis(host="storage")
texts, labels = json.loads(storage.get("reviews"))


def score(point: dict[str, object]) -> float:
    """Mean accuracy over the folds."""
    pipeline = Pipeline(
        [
            ("count", CountVectorizer(ngram_range=(1, point["ngrams"]), max_df=point["max_df"])),
            ("tfidf", TfidfTransformer(use_idf=point["use_idf"])),
            ("classify", SGDClassifier(alpha=point["alpha"], penalty=point["penalty"], random_state=0)),
        ]
    )
    return float(cross_val_score(pipeline, texts, labels, cv=FOLDS).mean())


while (found := storage.rpop("tasks")) is not None:
    task = json.loads(found)
    storage.hset("results", task["number"], json.dumps({**task, "score": score(task["point"])}))
