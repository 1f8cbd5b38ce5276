"""Command lines: a good one with a few words that are odd, wrong, or too much."""

from hypothesis import strategies as st

ODD = [
    "-1",
    "0",
    "1",
    "2",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e30",
    "1e400",
    "99999999999999999999",
    "",
    "x",
    "None",
    "True",
]
ODD += [
    "[]",
    "-",
    "--",
    "1_0",
    "0x10",
    "1e-400",
    "4294967296",
    "9" * 5_000,
    "\N{ARABIC-INDIC DIGIT THREE}",
    "é\n",
    "a=b",
]
PATHS = [
    "notes",
    "notes/config.json",
    "scratch/out",
    "vrs",
    "/dev/null",
    "/dev/null/x",
    "nowhere",
    "tiny.npz",
    "scratch",
]
THRESHOLDS = [
    "rate:0.5",
    "rate:0",
    "rate:nan",
    "quantile:0.9",
    "quantile:1",
    "fixed:inf",
    "fixed:-inf",
    "fixed:",
    "rate",
]
THRESHOLDS += ["quantile:0.9:3", "RATE:.5", "soft:1"]
SETTINGS = [
    "max_rounds=0",
    "max_rounds=-1",
    "throw=3",
    "num_samples=1",
    "threshold=3",
    "acceptance=hard",
    "x=1",
    "x",
    "=1",
]
SETTINGS += [
    "b1=2",
    "b1=nan",
    "eps=-1",
    "nesterov=3",
    "momentum=1e9",
    "weight_decay=x",
    "max_rounds=1e400",
    "a=" + "(" * 500,
]

TRAIN = {
    "--data": ["digits", "mnist", "nowhere.npz", "tiny.npz", "notes/config.json", "notes", "diigts"],
    "--data-dir": PATHS,
    "--model": ["nowhere.py:make", "os:system", "notes/config.json:x", "x", ":", "json:loads", "relbo:sbn"],
    "--layers": ["2-2", "2--2", "0", "-2", "2,2", "999999999999", "99999-99999", "1" * 400, "2-x"],
    "--num-hidden": ["1", "101"],
    "--estimator": ["vrs", "rloo", "vimco", "pathwise", "VRS", "rebar", "disarm", "nvil"],
    "--num-samples": ["1", "2", "1000001"],
    "--num-proposals": ["1", "2", "1000001"],
    "--threshold": THRESHOLDS,
    "--rate": ["0.5", "1", "-0.5"],
    "--refresh-epochs": ["0", "0.001", "1e7"],
    "--warmup-epochs": ["0", "1e7"],
    "--num-draws": ["1", "1000001"],
    "--acceptance": ["soft:1", "soft:0", "soft:nan", "hard", "always", "hard:1", "soft:inf"],
    "--set": SETTINGS,
    "--optimizer": ["adam", "sgd", "lbfgs", "adman", "chain", "__name__", "tree", "rmsprop", "contrib", "polyak_sgd"],
    "--lr": ["0.1", "1000", "1001"],
    "--schedule": ["cosine", "linear", "steps"],
    "--optimizer-set": SETTINGS,
    "--batch-size": ["24", "25"],
    "--seed": ["4294967295"],
    "--valid-bound": ["elbo", "is:0", "rs:2", "is:99999999999999999999", "is", "is:1.5"],
    "--valid-every": ["1"],
    "--patience": ["1"],
    "--checkpoint-every": ["1"],
    "--log-every": ["1"],
    "--out": PATHS,
}
READ = {
    "--bound": ["elbo", "is:2", "rs:2", "is:0", "rs:", "is:-1", "IS:3", "is:99999999999999999999"],
    "--split": ["train", "valid", "test", "exam"],
    "--limit": ["1", "3", "1000"],
    "--parameters": ["best", "last", "worst"],
    "--repeats": ["1", "2", "1000001"],
    "--seed": ["4294967295"],
    "--data-dir": PATHS,
    "--out": [*PATHS, "scratch/out.json", "scratch/out.npz", "scratch/a/b.html"],
}
RULE = {"--threshold": THRESHOLDS, "--rate": ["0.5", "1", "-0.5"]}
SMALL_TRAIN = ["--data", "tiny.npz", "--layers", "2", "--num-samples", "2", "--batch-size", "8"]
SMALL_TRAIN += ["--valid-bound", "is:2", "--quiet", "--out", "scratch/out"]
SMALL_READ = ["--limit", "3", "--bound", "elbo", "--repeats", "1"]
COMMANDS = {
    "train": (SMALL_TRAIN, TRAIN),
    "evaluate": (["vrs", *SMALL_READ], READ | RULE),
    "sample": (
        ["vrs", "--limit", "2", "--num-samples", "3", "--num-draws", "5", "--out", "scratch/out.npz"],
        {**{name: READ[name] for name in ("--split", "--parameters", "--seed", "--data-dir", "--out")}, **RULE}
        | {"--limit": ["1"], "--num-samples": ["2", "1000001"], "--num-draws": ["2", "1000001"], "--max-rounds": ["1"]},
    ),
    "compare": (["vrs", "rloo", *SMALL_READ], READ),
    "report": (["vrs", *SMALL_READ, "--out", "scratch/out.html"], READ | {"--title": ["x", "<b>"]}),
    "data check": (["tiny.npz"], {"--data-dir": PATHS}),
    "data list": ([], {"--data-dir": PATHS}),
    "data fetch": (["digits"], {"--data-dir": PATHS, "--url": ["http://127.0.0.1:9/", "x"]}),
    "list": ([], {"--json": ["x"]}),
    "variance": (["nowhere"], {"--out": PATHS, "--layers": ["x", "0"], "--data-dir": PATHS}),
    "reproduce figure1": (["--out", "notes/config.json"], {"--seed": ["x"]}),
    "reproduce table1": (["--preset", "nothing", "--out", "scratch/out"], {"--minutes": ["1"], "--only": ["x"]}),
    "demo": (["--out", "notes/config.json"], {}),
    "bench": (["--out", "notes/config.json"], {}),
}
WEIGHTS = ["train"] * 6 + ["evaluate"] * 3 + ["sample", "compare", "report"] + list(COMMANDS)[5:]
RUNS = ["notes", "nowhere", "scratch", "tiny.npz", "rloo"]
WORDS = ["--help", "--resume", "--json", "--no-such-option", "extra", "--debug-", "-1", ""]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command line of the program's commands; options that come twice count as the last says."""
    command = draw(st.sampled_from(WEIGHTS))
    base, options = COMMANDS[command]
    words = [*command.split(), *base]
    if command == "train":
        # a run without epochs is checked and opened like any other, and compiles nothing
        words += ["--epochs", draw(st.sampled_from(["0"] * 60 + ["1", "-1", "1000000001", "x"]))]
    for name in draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=3)) if options else []:
        value = draw(st.sampled_from(options[name] + ODD))
        words += [f"{name}={value}"] if draw(st.booleans()) else [name, value]
    if draw(st.integers(0, 5)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from(WORDS)))
    if base and base[0] in ("vrs", "tiny.npz", "digits") and draw(st.integers(0, 5)) == 0:
        words[len(command.split())] = draw(st.sampled_from(RUNS + ODD))
    return words
