"""The file system of a container: a folder of its own, with this machine's programs, an image's paths and volumes."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.container_images import HOME, USERS, Image

SYSTEM = ("alternatives", "java-17-openjdk", "ssl", "ld.so.cache", "localtime", "nsswitch.conf", "mime.types")
"""What the programs below `/usr` need in `/etc`."""

FIRST_PROCESS = "/run/first-process"

SHARED_MEMORY = 64 * 1024 * 1024
"""Bytes of `/dev/shm` where a service does not say."""


@dataclass(frozen=True)
class Root:
    """The root of one service's container; what is written there stays when the container is started again."""

    service: Mapping[str, Any]
    image: Image
    layer: Path
    """What belongs to this container alone."""
    volumes: Path
    """Folder of the named volumes."""
    first_process: Path
    """The program that a container starts with."""

    @property
    def path(self) -> Path:
        """The folder that is the root."""
        return self.layer / "root"

    def make(self, secrets: Mapping[str, str], hosts: Mapping[str, str]) -> None:
        """Make what the container finds in its root: places for mounts, secrets, names of hosts, users."""
        for folder in ("usr", "etc", "proc", "sys", "dev", "run/secrets", "var/lib", "tmp"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        (self.path / "tmp").chmod(0o1777)
        for name in ("bin", "lib", "lib64", "sbin"):
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"usr/{name}")
        shutil.copy(self.first_process, self.path / FIRST_PROCESS.lstrip("/"))
        for source, target in self._mounts():
            self._make_place(source, target)
        files = {f"/run/secrets/{name}": text for name, text in secrets.items()}
        files |= {"/etc/hosts": "".join(f"{address} {name}\n" for name, address in hosts.items())}
        homes = {"tidemark": "/var/lib/tidemark"}
        accounts = [f"{n}:x:{u}:{u}::{homes.get(n, '/tmp')}:/bin/bash" for n, u in USERS.items()]
        files |= {"/etc/passwd": "\n".join(accounts) + "\n"}
        files |= {"/etc/group": "".join(f"{name}:x:{number}:\n" for name, number in USERS.items())}
        for path, text in {**files, **self.image.programs}.items():
            file = self.path / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if path in self.image.programs else 0o444 if "/secrets/" in path else 0o644)

    def _mounts(self) -> list[tuple[Path, str]]:
        """Folders and files of this machine, and where they lie in the container."""
        found = [(Path("/etc") / name, f"/etc/{name}") for name in SYSTEM if (Path("/etc") / name).exists()]
        found += list(self.image.paths.items())
        for volume in self.service.get("volumes") or ():
            source = Path(volume["source"])
            if volume["type"] == "volume":
                source = self.volumes / source
                if not source.exists():
                    # As an engine fills a new volume: with what the image has there, a folder of its user.
                    source.mkdir(parents=True)
                    os.chown(source, self.image.user, self.image.user)
            found.append((source, volume["target"]))
        return found

    def _make_place(self, source: Path, target: str) -> None:
        place = self.path / target.lstrip("/")
        if self.image.root is not None and target.startswith(f"{HOME}/"):
            return
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()

    def mount_commands(self) -> list[str]:
        """Return the shell commands that mount what the root is made of, in a mount namespace of its own."""
        root = shlex.quote(str(self.path))
        lines = [
            f"mount --bind /usr {root}/usr",
            f"mount -o remount,bind,ro {root}/usr",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /sys {root}/sys",
            f"mount --rbind /dev {root}/dev",
            f"mount -t tmpfs -o size={self.service.get('shm_size', SHARED_MEMORY)},mode=1777 tmpfs {root}/dev/shm",
        ]
        if self.image.root is not None:
            changes, work = self.layer / "home", self.layer / "work"
            for folder in (changes, work, self.path / HOME.lstrip("/")):
                folder.mkdir(parents=True, exist_ok=True)
            os.chown(changes, self.image.user, self.image.user)
            layers = f"lowerdir={self.image.root},upperdir={changes},workdir={work}"
            lines.append(f"mount -t overlay -o {shlex.quote(layers)} overlay {root}{HOME}")
        lines += [f"mount --bind {shlex.quote(str(s))} {root}{shlex.quote(t)}" for s, t in self._mounts()]
        return lines
