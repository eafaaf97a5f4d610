"""The web pages: one application that runs inside Airflow below `/tidemark` and alone by `./tidemark monitor`.

A page is four things, and nothing else:

1. a function in a data module that reads the ledger and returns a frozen dataclass: everything that the page shows;
2. a template in `templates/` that extends `frame.html`, sets `section`, and fills `title`, `main` and, if it needs
   files of its own, `style` and `script`;
3. a route in a router, which ends in `return page(request, "name.html", data)`: HTML, or with `?format=json` the same
   data as JSON;
4. the router's name in `app.ROUTERS`.

Rights: a route that shows one pipeline takes `ReadablePipeline`, a route that changes something takes `ActedPipeline`;
both read the path's `{pipeline}`. Any other route asks `CurrentVisitor`, and leaves out what the visitor may not read.

Templates escape every value. They link by `{{ href("intervals", name, label) }}`, load files of `static/` by
`{{ asset("frame.css") }}`, and write values by the filters `number`, `cell`, `when`, `ago` and `quantity`. The
policy allows no script and no style inside a page: behaviour goes to a file in `static/`, geometry to SVG attributes.

A page that updates by itself fills the block `live` with ` data-live="URL"`, and answers at that URL by `events`
(`events.py`) with the rendered page. What differs is changed in place (`static/live.js`): an element with an `id` is
found by it among its siblings, any other by its place. What may move, come or go has an id of its own.
"""
