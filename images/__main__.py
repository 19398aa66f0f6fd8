"""Build the stages' images with Docker and push them to the registry that BATON_IMAGE_REGISTRY names.

python -m images          all of them
python -m images train    one family
"""

import sys

from flytekit.image_spec.image_spec import ImageBuildEngine

import images
from infra.errors import Stopped

BY_FAMILY = dict(zip(images.FAMILIES, (images.DATA, images.TRAIN, images.SERVE, images.POST_TRAIN), strict=True))


def main(families: list[str]) -> None:
    unknown = set(families) - BY_FAMILY.keys()
    if unknown or not images.TRAIN.registry:
        raise Stopped(f"usage: BATON_IMAGE_REGISTRY=… python -m images [{'|'.join(BY_FAMILY)}] …")
    for image in (BY_FAMILY[family] for family in families or BY_FAMILY):
        if image.exist() is None:  # Flyte would take it for built
            raise Stopped("Docker or the registry does not answer, and they are what makes an image")
        ImageBuildEngine.build(image)  # nothing is done for one that the registry has
        print(image.image_name())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Stopped as error:
        sys.exit(error.message)
