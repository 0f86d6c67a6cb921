"""Choose a position encoding by answering questions, and check a set-up before anything is trained or run.

Prints the three encodings that suit pictures which get twice as large as in training, with what was measured, those
that are excluded, and what `zoo.doctor` says about RoPE at 512 px after training at 112 px, as it is and extended.

python examples/choose_encoding.py
"""

import tempfile

import zoo


def main() -> None:
    found = zoo.advise(tokens="grid", size="changing", times=2, landmarks="no", phase="training")
    for one in found["ranked"][:3]:
        extend = f" with {one['extend']}" if one["extend"] else ""
        measured = ", ".join(f"{result['metric']} {result['mean']:.1f}" for result in one["measured"]) or "nothing"
        print(f"{one['rank']}. {one['encoding']}{extend}: measured {measured}")
    print(f"excluded: {', '.join(one['encoding'] for one in found['excluded'])}")

    report = zoo.doctor("rope-vit-t-imagenette", size=512)
    for finding in report["findings"]:
        print(f"{finding['severity']} {finding['code']}: {finding['title']}; {finding['mend']}")
    # As mended; a recipe, a folder and a config.json can be examined too, before there are weights or data.
    mended = {"extend": "yarn", "factor": 512 / 112}
    model = zoo.load("rope-vit-t-imagenette", pretrained=False, encoding_options=mended)
    with tempfile.TemporaryDirectory() as folder:
        report = zoo.doctor(f"local-dir:{zoo.save(model, folder)}", size=512)
    print(f"with YaRN: {report['errors']} errors; {[finding['code'] for finding in report['findings']]}")


if __name__ == "__main__":
    main()
