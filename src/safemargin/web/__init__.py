"""Web pages: the report of a study, its explorer, and the page of a watched fleet.

    report, margin_tables       a study as one HTML file; needs no server and no FastAPI
    gate_report, evolution, drawing
                                two checkpoints, or many, compared on one page with charts as SVG
    explorer, describe          the explorer: the application and what it sends to its page
    fleet/                      agents, people and who has which agent; knows nothing of HTTP
    fleet_app                   the fleet page as an application, and the way in for agents
    connections, page_connection, plain_agents
                                agents and pages by WebSocket, agents by plain HTTP
    replay_app, replay_file     the log of a watched fleet, entry by entry: served, or as one file
    access, entrance, guard, server
                                tokens, checking them, what browsers may do, listening on a port
    pages/                      HTML, CSS and JavaScript as files

To add a page, write its files in `pages/`, an application like `replay_app`, and a command in
`safemargin.cli.pages`. Import from the modules: this package loads none of them.
"""
