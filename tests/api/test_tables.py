import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import l0tre
from l0tre.api.tables import rows_inside
from l0tre.data import from_arrays
from l0tre.errors import ConfigError, DataError, ModelError
from l0tre.names import Names
from l0tre.rules import Free, Rules
from tests.tools import NO_ATTACK

RANDOM = np.random.RandomState(0)
NUMBERS = RANDOM.rand(200, 4).astype(np.float32)
CLASSES = np.array(["low", "high"])[((NUMBERS[:, :3] > 0.5).sum(1) >= 2).astype(int)]


def table(**columns: Any) -> l0tre.Dataset:
    values = np.stack([np.asarray(column, dtype=np.float32) for column in columns.values()], 1)
    return from_arrays(values, names=Names(features=tuple(columns)), scale=1)


@pytest.mark.parametrize(
    "estimator",
    [
        DecisionTreeClassifier(max_depth=4, random_state=0),
        RandomForestClassifier(5, max_depth=3, random_state=0),
        ExtraTreesClassifier(5, max_depth=3, random_state=0),
        GradientBoostingClassifier(n_estimators=5, max_depth=2, random_state=0),
        HistGradientBoostingClassifier(max_iter=4, max_leaf_nodes=4, min_samples_leaf=5, random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_one_column_of_an_ensemble_of_trees_is_exact(estimator: Any) -> None:
    estimator.fit(NUMBERS, CLASSES)
    result = l0tre.evaluate(estimator, NUMBERS[:20], CLASSES[:20], max_t=1, **NO_ATTACK)
    line = np.linspace(0, 1, 2001, dtype=np.float32)
    for image in result:
        assert image.guarantee == "certified"
        changed = False
        for column in range(4):
            rows = np.repeat(NUMBERS[image.index : image.index + 1], len(line), 0)
            rows[:, column] = line
            changed |= bool((estimator.predict(rows) != CLASSES[image.index]).any())
        assert not (changed and image.lower == 1)
        assert (image.upper == 1) == (image.lower == 0)
        if image.upper == 1:
            assert image.witness is not None
            witness = image.witness.apply(torch.from_numpy(NUMBERS[image.index]))
            assert estimator.predict(witness[None].numpy())[0] != CLASSES[image.index]
    assert 0 < result.lower < 1
    assert "interval between its thresholds" in result.config["guarantee"]["arithmetic"]
    assert result.config["names"]["classes"] == ["high", "low"]


def test_pipelines_get_words_and_names_back() -> None:
    frame = pd.DataFrame({"size": NUMBERS[:, 0], "kind": np.where(NUMBERS[:, 1] > 0.5, "round", "long")})
    labels = np.where((frame["size"] > 0.5) & (frame["kind"] == "round"), "yes", "no")
    encode = ColumnTransformer([("kind", OneHotEncoder(), ["kind"])], remainder="passthrough")
    model = make_pipeline(encode, DecisionTreeClassifier(max_depth=3)).fit(frame, labels)
    data = frame.assign(answer=labels)
    rows = l0tre.data.tables.raw_of_frame(data, l0tre.data.tables.TableColumns("answer"))
    dataset = from_arrays(rows.images, rows.labels, scale=1, names=rows.names)
    domain = l0tre.table_domain(dataset)
    assert isinstance(domain.rules, Rules)
    result = l0tre.evaluate(model, dataset, domain=domain, max_t=1, **NO_ATTACK)
    assert not result.excluded
    assert result.config["names"]["words"] == {"1": ["long", "round"]}
    for image in result:
        if image.witness is not None:
            values = image.witness.apply(dataset.images[image.index])
            row = pd.DataFrame({"size": [float(values[0])], "kind": [("long", "round")[int(values[1])]]})
            assert model.predict(row)[0] == ("no", "yes")[image.witness.label]


def test_data_frames_are_taken_as_they_are() -> None:
    frame = pd.DataFrame(NUMBERS, columns=list("abcd"))
    model = LogisticRegression().fit(frame, CLASSES)
    result = l0tre.evaluate(model, frame[:5], list(CLASSES[:5]), max_t=1, **NO_ATTACK)
    assert result.config["names"]["features"] == ["a", "b", "c", "d"]
    assert "class" in result.to_dataframe()
    with pytest.raises(DataError, match="another order"):
        l0tre.evaluate(model, frame[["b", "a", "c", "d"]][:5], list(CLASSES[:5]))
    with pytest.raises(DataError, match="no column 'd'"):
        l0tre.evaluate(model, frame.rename(columns={"d": "e"})[:5], list(CLASSES[:5]))
    with pytest.raises(DataError, match="label 'other'"):
        l0tre.evaluate(model, frame[:1], ["other"])
    with pytest.raises(ModelError, match="not fitted"):
        l0tre.load(LogisticRegression(), input_shape=(4,))


def test_names_of_classes_for_a_classifier_that_numbers_them() -> None:
    model = DecisionTreeClassifier(max_depth=2).fit(NUMBERS, (CLASSES == "low").astype(int))
    names = Names(classes=("tall", "small"))
    data = from_arrays(NUMBERS[:9], (CLASSES[:9] == "low").astype(int), names=names)
    result = l0tre.evaluate(model, data, max_t=1, **NO_ATTACK)
    assert result.config["names"]["classes"] == ["tall", "small"]
    assert all((CLASSES[image.index] == "low") == (image.label == 1) for image in result)
    assert result.config["model"]["name"] == "DecisionTreeClassifier"


def test_ranges_and_rules_from_a_table() -> None:
    data = table(
        age=[20, 30, 45],
        wealth=[0, 5000, 90000],
        grade=[1, 2, 5],
        a=[1, 0, 0],
        b=[0, 1, 0],
        c=[0, 0, 1],
        height=[1.5, 2, 3],
    )
    plain = l0tre.table_domain(data)
    assert isinstance(plain.rules, Free)
    assert plain.low.tolist() == [20, 0, 1, 0, 0, 0, 1.5]
    assert plain.high.tolist() == [45, 90000, 5, 1, 1, 1, 3]
    domain = l0tre.table_domain(
        data, integer=["auto"], categorical=["grade"], one_hot=["a+b+c"], upwards=["age"], fixed=["hei*"]
    )
    assert isinstance(domain.rules, Rules)
    counts = dict(zip(domain.ids.tolist(), domain.rules.counts.tolist(), strict=True))
    assert counts == {0: 26, 1: 0, 2: 3, 3: 3}  # ages one by one, wealth too wide for that, grades as in the data
    assert domain.rules.whole.nonzero()[:, 0].tolist() == [1]
    assert domain.rules.direction.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert sorted(domain.rules.vectors[3, :3].tolist()) == sorted(torch.eye(3).tolist())


def test_one_hot_columns_without_a_first_one_may_be_all_zero() -> None:
    domain = l0tre.table_domain(table(a=[0, 1, 0], b=[0, 0, 1]), one_hot=["*"])
    assert isinstance(domain.rules, Rules)
    assert int(domain.rules.counts[0]) == 3
    scaled = l0tre.table_domain(table(a=[-0.5, 2, -0.5], b=[1.5, -1, 1.5]), one_hot=["a+b"])
    assert isinstance(scaled.rules, Rules)
    assert scaled.rules.vectors[0].tolist() == [[-0.5, 1.5], [2, -1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fixed": ["z"]}, "`fixed` names 'z', which is no column: there are a, b"),
        ({"one_hot": ["a+b"], "fixed": ["a"]}, "some of the one-hot columns"),
        ({"one_hot": ["a+b"], "categorical": ["a"]}, "named twice"),
    ],
)
def test_columns_that_cannot_be_used(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        l0tre.table_domain(table(a=[0, 1], b=[1, 0]), **options)


def test_five_points_for_each_column_where_ranges_are_wide() -> None:
    data = table(a=[0, 1, 0.5], b=[0, 4000, 100])
    domain = l0tre.table_domain(data)
    model = torch.nn.Linear(2, 2).eval()

    def settings(**options: Any) -> Any:
        run = l0tre.evaluate(model, data, domain=domain, max_t=1, guarantee="grid", **options, **NO_ATTACK)
        return run.config["settings"]

    assert (settings()["points"], settings(points=3)["points"]) == (5, 3)
    assert settings(epsilon=1000)["points"] == 0
    with pytest.raises(ConfigError, match="give one of them"):
        settings(epsilon=1, points=3)


def test_a_table_on_the_command_line(tmp_path: Path) -> None:
    from tests.cli.running import l0tre as command

    (tmp_path / "model.py").write_text(
        "import numpy as np\nfrom sklearn.tree import DecisionTreeClassifier\n"
        "rows = np.array([[1, 10], [2, 20], [3, 30], [4, 40]], dtype=np.float32)\n"
        "model = DecisionTreeClassifier().fit(rows, ['cheap', 'cheap', 'dear', 'dear'])\n"
    )
    (tmp_path / "t.csv").write_text("id,size,price,class\np,1,10,cheap\nq,4,40,dear\nr,2,20,cheap\n")
    words = ("--label-column", "class", "--row-name", "id", "--max-t", "1")
    result = command(
        "evaluate", f"{tmp_path / 'model.py'}:model", tmp_path / "t.csv", *words, "--out", tmp_path / "run"
    )
    assert result.code == 0, result
    for word in ("0 p", "cheap", "dear", "classified correctly: 3 of 3", "certified", "on 3 rows of"):
        assert word in result.out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Rows by upper bound" in page
    for text in (result.out, *re.findall(r'"(?:text|title|note|summary|hint|x|y)": ?"([^"]*)"', page)):
        assert not re.search(r"\bimages?\b", text, re.IGNORECASE), text
    drawn = command(
        "saliency", f"{tmp_path / 'model.py'}:model", tmp_path / "t.csv", *words[:4], "--out", tmp_path / "m.png"
    )
    assert re.search(r"^ *(size|price) ", drawn.out, re.MULTILINE)
    short = command("evaluate", f"{tmp_path / 'model.py'}:model", tmp_path / "t.csv", *words, "--drop", "size")
    assert (short.code, "takes 2 values for each input, not 1: leave out columns" in short.err) == (2, True), short
    answer = command("verify", f"{tmp_path / 'model.py'}:model", tmp_path / "t.csv", *words[:4], "--radius", "1")
    assert answer.code == 1, answer
    assert "makes it class dear" in answer.out
    assert " -> " in answer.out
    assert "size: " in answer.out or "price: " in answer.out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "cheap" in page
    assert '"inputs":{"0":"p"' in page


def test_ranges_without_outliers() -> None:
    values = torch.arange(100.0)
    rare = (values > 97).float()
    data = table(size=values, fixed=values, flag=rare, kind=rare)
    domain = l0tre.table_domain(data, quantile=0.05, fixed=["fixed"], categorical=["kind"])
    assert domain.low.tolist() == [5, 0, 0, 0]
    assert domain.high.tolist() == [94, 99, 1, 1]
    inside = rows_inside(data, domain)
    assert inside.indices == tuple(range(5, 95))
    with pytest.raises(ConfigError, match="a share of the rows"):
        l0tre.table_domain(data, quantile=0.5)
    with pytest.raises(DataError, match="no row inside"):
        rows_inside(data, l0tre.make_domain((4,), low=200.0, high=201.0))


def people(count: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.RandomState(seed)
    return pd.DataFrame(
        {
            "age": random.randint(18, 60, count),
            "job": random.choice(["baker", "clerk", "smith"], count),
            "hours": random.randint(10, 60, count),
        }
    )


def granted(frame: pd.DataFrame) -> np.ndarray:
    return np.where((frame.age > 40) | (frame.job == "smith"), "yes", "no")


def test_a_data_frame_is_a_table_in_all_calls() -> None:
    train = people(300)
    encode = ColumnTransformer([("words", OneHotEncoder(), ["job"])], remainder="passthrough")
    model = make_pipeline(encode, DecisionTreeClassifier(max_depth=6, random_state=0)).fit(train, granted(train))
    domain = l0tre.table_domain(train, fixed=["hours"], integer=["auto"])
    young = pd.DataFrame({"age": [25, 50], "job": ["clerk", "smith"], "hours": [30, 30]}, index=["a", "b"])
    result = l0tre.evaluate(model, young, ["no", "yes"], domain=domain, max_t=2, **NO_ATTACK)
    assert [image.upper for image in result] == [1, 2]  # two reasons to be granted; no hours matter
    names = result.config["names"]
    assert names["inputs"] == {"0": "a", "1": "b"}
    assert names["words"] == {"1": ["baker", "clerk", "smith"]}  # those of the domain: the rows hold two of them
    same = l0tre.load_data(train.assign(said=granted(train)), label_column="said", drop=["hours"])
    assert same.names.features == ("age", "job")
    assert same.names.classes == ("no", "yes")
    one = l0tre.verify(model, young.iloc[:1], radius=1, domain=domain)
    assert one.answer == "unsafe"
    changed = l0tre.attack_details(model, young, ["no", "yes"], domain=domain, budget=200)
    assert changed.distance.tolist() == [1, 2]


def test_words_are_those_of_the_table_that_the_domain_was_made_from() -> None:
    train = people(300)
    domain = l0tre.table_domain(train)

    def smiths(rows: pd.DataFrame) -> np.ndarray:
        yes = (np.asarray(rows)[:, 1] == 2).astype(float)  # the third of the words
        return np.stack([1 - yes, yes], 1)

    few = pd.DataFrame({"age": [30, 30], "job": ["smith", "clerk"], "hours": [20, 20]})
    network = l0tre.load(lambda x: torch.from_numpy(smiths(x.numpy())).float(), input_shape=(3,))
    result = l0tre.evaluate(network, few, domain=domain, max_t=1, **NO_ATTACK)
    assert [image.label for image in result] == [1, 0]
    unknown = few.assign(job=["smith", "king"])
    with pytest.raises(DataError, match="holds 'king', which the table of the domain does not"):
        l0tre.evaluate(network, unknown, domain=domain, max_t=1)


def test_a_table_without_a_domain_says_what_to_give() -> None:
    frame = people(5)
    network = l0tre.load(lambda x: x[:, :2], input_shape=(3,))
    with pytest.raises(DataError, match=r"column 'job' holds words.*l0tre.table_domain"):
        l0tre.evaluate(network, frame, max_t=1)
    with pytest.raises(DataError, match=r"column 'age' holds values such as .*l0tre.table_domain"):
        l0tre.sensitivity(network, frame.assign(job=0))
    domain = l0tre.table_domain(people(300), integer=["age"])
    with pytest.raises(DataError, match="has the value 999 in column age"):
        l0tre.evaluate(network, frame.assign(age=999), domain=domain, max_t=1)


def test_categories_of_pandas_keep_their_words_for_those_that_need_them() -> None:
    pytest.importorskip("lightgbm")
    from lightgbm import LGBMClassifier

    train = people(300).astype({"job": "category"})
    model = LGBMClassifier(n_estimators=5, min_child_samples=5, verbose=-1).fit(train, granted(train))
    domain = l0tre.table_domain(train, fixed=["hours", "age"])
    few = pd.DataFrame({"age": [20], "job": ["clerk"], "hours": [30]}).astype({"job": train.job.dtype})
    result = l0tre.evaluate(model, few, ["no"], domain=domain, max_t=1, **NO_ATTACK)
    witness = result[0].witness
    assert witness is not None
    assert (result[0].upper, witness.values.tolist()) == (1, [2.0])
    assert result[0].guarantee == "grid"


def test_trees_claim_float32_values_only() -> None:
    from l0tre.cli.render import _guarantee
    from l0tre.report.words import answer, guarantees

    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS, CLASSES)
    result = l0tre.evaluate(model, NUMBERS[:3], list(CLASSES[:3]), max_t=1, **NO_ATTACK)
    assert "all float32 values of the domain" in answer(result)
    assert "all float32 values of the domain, by trying" in guarantees(result, None)[0][2]
    assert _guarantee(result, result.config["settings"]) == "certified (all float32 values of the domain)"


def test_points_are_named_where_they_make_the_grid() -> None:
    from l0tre.report.words import guarantees

    model = LogisticRegression().fit(NUMBERS, CLASSES)
    result = l0tre.evaluate(model, NUMBERS[:2], list(CLASSES[:2]), max_t=1, points=3, **NO_ATTACK)
    said = guarantees(result, l0tre.make_domain((4,)))[0][2]
    assert "the values 0, 0.5, 1 from the smallest to the largest value of its range, evenly spaced" in said


def test_columns_in_another_order_than_the_domain_are_never_mixed_up() -> None:
    frame = pd.DataFrame(NUMBERS, columns=list("abcd"))
    domain = l0tre.table_domain(frame)

    def scores(x: torch.Tensor) -> torch.Tensor:  # knows no names
        return torch.stack([x[:, 0], 1 - x[:, 0]], 1)

    with pytest.raises(DataError, match="another order than the table of the domain: give them as a, b, c, d"):
        l0tre.evaluate(scores, frame.head(2)[list("dcba")], domain=domain, **NO_ATTACK)
    with pytest.raises(DataError, match="no column 'a', which the table of the domain has"):
        l0tre.evaluate(scores, frame.head(2).rename(columns={"a": "e"}), domain=domain, **NO_ATTACK)
    with pytest.raises(DataError, match="a column 'e', which the table of the domain does not have"):
        l0tre.attack(scores, frame.head(2).assign(e=1.0), domain=domain)


def test_arrays_and_single_rows_of_a_table() -> None:
    whole = l0tre.table_domain(NUMBERS)
    assert torch.equal(whole.low, torch.from_numpy(NUMBERS.min(0)))
    frame = pd.DataFrame({"job": ["miner", "baker"] * 20, "age": range(40)})
    model = make_pipeline(
        ColumnTransformer([("job", OneHotEncoder(), ["job"])], remainder="passthrough"),
        LogisticRegression(max_iter=500),
    ).fit(frame, frame["job"])
    domain = l0tre.table_domain(frame)
    one = l0tre.verify(model, frame.iloc[3], radius=1, domain=domain)
    assert one.answer == l0tre.verify(model, frame.iloc[[3]], radius=1, domain=domain).answer == "unsafe"
    assert one.witness is not None
    with pytest.raises(DataError, match="holds words"):
        one.witness.apply(frame.iloc[3])
    numbers = pd.DataFrame({"job": [0.0], "age": [3.0]})
    assert one.witness.apply(numbers.iloc[0]).tolist() != [0.0, 3.0]
    assert one.witness.apply(numbers).shape == (1, 2)


def test_labels_in_words_need_all_classes_of_a_network() -> None:
    network = l0tre.load(nn.Linear(4, 3), input_shape=(4,))
    labels = ["bird", "dog", "dog"]
    with pytest.raises(DataError, match=r"names 2 classes \(bird, dog\), Linear has 3: give all of them"):
        l0tre.evaluate(network, NUMBERS[:3], labels)
    named = from_arrays(NUMBERS[:3], labels, names=Names(classes=("bird", "cat", "dog")))
    assert named.labels is not None
    assert named.labels.tolist() == [0, 2, 2]
    l0tre.attack_details(network, named, budget=20)
