"""Generate messages of homes with cameras: skewed over zip codes, some cameras offline, some homes without one."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from include.producing.messages import format_milliseconds

ZIP_CODES = tuple(
    f"{zip_code:05d}" for zip_code in (94103, 10001, 60601, 73301, 98101, 2108, 33101, 80202, 30303, 97201)
)
DEVICES = tuple(f"cam-{number:04d}" for number in range(400))

_OUTAGE, _CYCLE = timedelta(minutes=15), timedelta(hours=25)
"""Each camera is offline once in a cycle, for so long: a hundredth of the cameras at any time."""


def location(device_id: str) -> str:
    """Return the zip code of a camera; a third of the cameras share the first one."""
    number = int(device_id.removeprefix("cam-"))
    return ZIP_CODES[0] if number % 3 == 0 else ZIP_CODES[number % len(ZIP_CODES)]


def _state(device_id: str, moment: datetime) -> tuple[bool, datetime]:
    """Return whether a camera is online at a moment, and since when."""
    # The cameras' turns are evenly spread over the cycle, those of a home far apart.
    turn = int(device_id[4:]) * 7 % len(DEVICES) * _CYCLE / len(DEVICES)
    went_offline = moment - (moment - datetime.fromtimestamp(0, UTC) - turn) % _CYCLE
    online = moment >= went_offline + _OUTAGE
    return online, went_offline + _OUTAGE if online else went_offline


def _camera(device_id: str, moment: datetime, rng: random.Random) -> dict[str, Any]:
    online, since = _state(device_id, moment)
    base = f"https://home.example/cameras/{device_id}"
    return {
        "device_id": device_id,
        "software_version": f"205-{rng.randint(600, 620)}",
        "structure_id": f"home-{int(device_id[4:]) // 3:03d}",
        "where_id": f"where-{int(device_id[4:]) % 7}",
        "where_name": ("Porch", "Hallway", "Garden", "Garage", "Kitchen", "Nursery", "Attic")[int(device_id[4:]) % 7],
        "name": device_id,
        "name_long": f"Camera {device_id}",
        "is_online": online,
        # Drawn in any state: a seed's messages differ by their start in nothing else.
        "is_streaming": rng.random() < 0.9 and online,
        "is_audio_input_enable": rng.random() < 0.5,
        "last_is_online_change": format_milliseconds(since),
        "is_video_history_enabled": rng.random() < 0.7,
        "web_url": base,
        "app_url": f"nestmobile://cameras/{device_id}",
        "is_public_share_enabled": False,
        "activity_zones": [{"name": "Door", "id": "z1"}, {"name": "Street", "id": "z2"}][: rng.randint(0, 2)],
        "public_share_url": None,
        "snapshot_url": f"{base}/snapshot.jpg",
        "last_event": {
            "has_sound": rng.random() < 0.4,
            "has_motion": rng.random() < 0.8,
            "has_person": rng.random() < 0.5,
            "start_time": format_milliseconds(moment),
            "end_time": format_milliseconds(moment + timedelta(seconds=rng.randint(1, 90))),
            "urls_expire_time": format_milliseconds(moment + timedelta(days=10)),
            "web_url": f"{base}/events",
            "app_url": f"nestmobile://cameras/{device_id}/events",
            "image_url": f"{base}/event.jpg",
            "animated_image_url": f"{base}/event.gif",
            "activity_zone_ids": ["z1", "z2"][: rng.randint(0, 2)],
        },
    }


def message(moment: datetime, rng: random.Random) -> tuple[bytes, bytes]:
    """Return key and value of a message whose cameras' events begin at `moment`; one in fifty has no camera."""
    home = rng.randrange(len(DEVICES) // 3)
    cameras = DEVICES[home * 3 : home * 3 + rng.randint(1, 3)] if rng.random() >= 0.02 else ()
    value = {
        "metadata": {"access_token": f"c.{rng.getrandbits(64):016x}", "client_version": 1},
        "devices": {
            "thermostats": {f"thermo-{home}": {"device_id": f"thermo-{home}", "humidity": rng.randint(30, 60)}},
            "smoke_co_alarms": {},
            "cameras": {device_id: _camera(device_id, moment, rng) for device_id in cameras},
            "companyName": {"product_type": {}},
        },
        "structures": {f"home-{home:03d}": {"structure_id": f"home-{home:03d}", "name": "Home"}},
    }
    return f"home-{home:03d}".encode(), json.dumps(value, separators=(",", ":")).encode()


def bad_messages(moment: datetime, rng: random.Random) -> list[tuple[str, bytes]]:
    """Return well-formed JSON messages that break a rule of the pipeline, as (reason, value)."""
    _, value = message(moment, rng)
    while b'"cam-' not in value:
        _, value = message(moment, rng)
    good = json.loads(value)

    def changed(**changes: object) -> bytes:
        copy = json.loads(value)
        camera = next(iter(copy["devices"]["cameras"].values()))
        for name, new in changes.items():
            (camera["last_event"] if name in camera["last_event"] else camera)[name] = new
        return json.dumps(copy).encode()

    good["devices"]["cameras"] = "none"
    return [
        ("wrong_type", json.dumps(good).encode()),
        ("wrong_type", changed(has_person="perhaps")),
        ("required_missing", changed(device_id=None)),
        ("required_missing", changed(device_id="")),
        ("value_too_long", changed(device_id="x" * 201)),
        ("event_time_out_of_bounds", changed(start_time="2099-01-01T00:00:00.000Z")),
        ("event_time_out_of_bounds", changed(start_time="0001-01-01T00:00:00.000Z")),
    ]
