"""`zoo viz`: figures of accuracy over input size and of the position bias inside a model; clouds; driving scenes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

__all__ = ["viz"]

viz = typer.Typer(
    help="Draw what a position encoding does, point clouds, and driving scenes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Out = Annotated[str, typer.Option("--out", "-o", help="Where to write the figure: .png, .svg or .pdf.")]


@viz.command("extrapolation")
def extrapolation(
    sources: Annotated[
        list[str], typer.Argument(help="Result files of `zoo eval --out`, tables of sweeps, or names with a record.")
    ],
    out: Out = "extrapolation.png",
    trained_size: Annotated[int | None, typer.Option(help="Size to mark; by default the models' own.")] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the figure.")] = None,
    only: Annotated[str | None, typer.Option(help="Names of the lines to draw, as rope,pape; by default all.")] = None,
) -> None:
    """Draw top-1 accuracy against the size of the input, one line per model."""
    from zoo import viz as draw
    from zoo.curves import chosen, common_trained_size, read_curves

    models = chosen(read_curves(sources), only)
    if trained_size is None:
        trained_size = common_trained_size(models)
    print(draw.save(draw.extrapolation(models, trained_size=trained_size, title=title), out))


@viz.command("bias")
def bias(
    name: Annotated[str, typer.Argument(help="Model name, as for `zoo predict`.")],
    out: Out = "bias.png",
    query: Annotated[str | None, typer.Option(help="Patch that attends, as ROW,COLUMN; by default the middle.")] = None,
    image: Annotated[str | None, typer.Option(help="Picture to look at; by default a blank one.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the square input in pixels.")] = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Do not load weights: the bias at the start.")] = False,
) -> None:
    """Draw the position bias that one patch puts on all others, per layer and head."""
    import zoo
    from zoo import viz as draw

    place = None if query is None else draw.parse_query(query)
    model = zoo.load(name, pretrained=not untrained)
    pixels = draw.model_input(model, image, size=size)
    values = draw.position_bias(model, pixels, query=place)
    print(draw.save(draw.bias(values, query=place, title=f"{name}: position bias of one query"), out))


@viz.command("points")
def points(
    source: Annotated[str, typer.Argument(help="A cloud: PLY, PCD, LAS, OFF, KITTI .bin, NPZ, text, ...")],
    out: Annotated[
        str, typer.Option("--out", "-o", help="Where to write: .html for an interactive page, else .png, .svg or .pdf.")
    ] = "points.html",
    by: Annotated[
        str | None, typer.Option(help="What colours the points: a field, rgb, x, y or z; by default labels, else rgb.")
    ] = None,
    view: Annotated[
        str, typer.Option(help="Of a picture: iso, top, front, side, or AZIMUTH,ELEVATION in degrees.")
    ] = "iso",
    names: Annotated[str | None, typer.Option(help="Names of the classes of the field label, as ground,tree.")] = None,
    max_points: Annotated[int, typer.Option(help="Of larger clouds so many are drawn at random.")] = 300_000,
    seed: Annotated[int, typer.Option(help="Of that draw.")] = 0,
    title: Annotated[str | None, typer.Option(help="Heading; by default the name of the cloud.")] = None,
    errors: Annotated[str, typer.Option(help="Damaged files: raise, or keep what can be decoded.")] = "raise",
) -> None:
    """Draw a point cloud with its labels or fields, as a picture or as a page to turn it around."""
    import zoo
    from modalities.points.viewer import save_page
    from modalities.points.viz import draw_points, parse_view
    from zoo import viz as draw

    chosen: dict[str, Any] = {
        "names": None if names is None else [name.strip() for name in names.split(",")],
        "title": title,
        "max_points": max_points,
        "seed": seed,
    }
    looking = parse_view(view)
    cloud = zoo.read(source, kind="points", errors=errors)
    if out.lower().endswith((".html", ".htm")):
        print(save_page(cloud, out, by, **chosen))
    else:
        print(draw.save(draw_points(cloud, by, view=looking, **chosen), out))


@viz.command("driving")
def driving(
    dataroot: Annotated[str, typer.Option(help="Root of a data set in the format of nuScenes.")],
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="The key frame; by default the first by scene and time, of those predicted with --predictions.",
        ),
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", help="Where to write: .png, .jpg or .webp.")] = "driving.png",
    predictions: Annotated[
        str | None,
        typer.Option(
            help="Draw the boxes of this file in the format of nuScenes submissions, and the labels in white."
        ),
    ] = None,
    min_score: Annotated[float, typer.Option(min=0, max=1, help="Leave out predictions with a smaller score.")] = 0.25,
    version: Annotated[str | None, typer.Option(help="Folder of tables, as v1.0-mini, if there are several.")] = None,
    sweeps: Annotated[int, typer.Option(help="Lidar sweeps that are laid together.")] = 1,
    reach: Annotated[float, typer.Option(help="Metres from the car to the edge of the bird's-eye view.")] = 54.0,
    keep: Annotated[bool, typer.Option("--keep", help="Go on without sensors with missing or damaged files.")] = False,
) -> None:
    """Draw a key frame: its cameras and lidar points with the labelled boxes, or with predicted ones over them."""
    from modalities.driving.nuscenes.dataset import NuScenes
    from modalities.driving.viz import key_frame_picture
    from zoo.results import save_picture

    missing: Literal["raise", "mask"] = "mask" if keep else "raise"
    data = NuScenes(dataroot, version, missing_images=missing, missing_lidar=missing)
    picture = key_frame_picture(
        data, sample, predictions=predictions, min_score=min_score, sweeps=sweeps, reach=reach, keep=keep
    )
    print(save_picture(picture, out))
