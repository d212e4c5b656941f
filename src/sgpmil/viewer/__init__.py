"""A web page to look through the slides of a run, with their maps: ``sgpmil view RUN``.

::

    view(ViewOptions(run="runs/colon", slides="slides"))      # serves until Ctrl-C

======================  ========================================================================
module                  holds
======================  ========================================================================
server                  options, address, start and end
app                     addresses: page, answers as JSON, tiles
answers                 the answers
safety                  checks of every request: host, token, origin, sizes, rates
viewing                 tiles, thumbnails, pictures and scores of the slides, cached
cohort                  the slides of runs as a worklist: columns, filters, order
run_knowledge           limits of the colours, embeddings and prototypes of a run
scored_slide            scores of one slide's patches and their places
map_tiles, slide_tiles  tiles of maps and of slides, by the geometry of `pyramid`
similar_patches         patches that look alike to the encoder
reviews                 verdicts of people, in SQLite
vendor                  JavaScript libraries, fetched at set-up
======================  ========================================================================
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.viewer.server import ViewOptions, view
else:
    __getattr__, __dir__ = names_on_demand(__name__, {"server": "ViewOptions view"})

__all__ = ["ViewOptions", "view"]
