"""Detects objects in one image, prints them, and draws them: `python image.py MODEL IMAGE [OUT.png] [--classify MODEL]`.

Needs Pillow to write the image.
"""

import argparse

import roiflow

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model")
parser.add_argument("image")
parser.add_argument("out", nargs="?")
parser.add_argument("--classify", metavar="MODEL", help="a classifier for each object")
args = parser.parse_args()

results = roiflow.load(args.model)(args.image)
if args.classify:
    # The classifier reads the regions of the same pixels.
    results = roiflow.load(args.classify)(args.image, rois=results)
for found in results:
    attributes = {name: attribute.value for name, attribute in found.attributes.items()}
    print(found.label, f"{found.confidence:.2f}", found.xyxy.round().astype(int).tolist(), attributes or "")
print(results.to_json(source=args.image))
if args.out:
    from PIL import Image

    Image.fromarray(results.plot(args.image)).save(args.out)
