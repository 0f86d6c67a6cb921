"""Begin a chorale with the embedded decoder, and see that a cache of keys and values changes nothing but the time.

Prints the largest difference of logits with and without the cache, for several encodings (their weights are random: of
decoders only the one of chorales is trained in this package), and two beats of a chorale.

python examples/sequences.py
"""

import torch

import zoo
from modalities.sequence.cache import DecoderCache


def main() -> None:
    for encoding in ("pope", "rope", "pape", "alibi", "none"):
        torch.manual_seed(0)
        model = zoo.load(f"{encoding}-decoder-n-jsb", pretrained=False).eval()
        ids = torch.randint(model.num_classes, (2, 48))
        with torch.inference_mode():
            whole, cache = model(ids), DecoderCache()
            # 16 tokens at once, then one by one: each step computes the new token alone.
            steps = [model(ids[:, :16], cache=cache)]
            steps += [model(ids[:, at : at + 1], cache=cache) for at in range(16, 48)]
        difference = (torch.cat(steps, dim=1) - whole).abs().max()
        print(f"{encoding}: {cache.length} tokens in the cache, logits differ by {difference:.0e}")

    print("pope-decoder-t-jsb, notes held where pitches repeat:")
    result = zoo.predictor("pope-decoder-t-jsb")(None, tokens=32, seed=1)
    for pitches in result.pitches:
        print("  soprano {} alto {} tenor {} bass {}".format(*pitches))


if __name__ == "__main__":
    main()
