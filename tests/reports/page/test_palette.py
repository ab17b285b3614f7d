"""The colours of the timeline: few, visible on both grounds, and different for people with colour blindness."""

import re
from itertools import combinations

import numpy as np
import pytest

from lumos.reports.page.html import static

#: The least contrast of graphics (WCAG 2.2, 1.4.11).
CONTRAST = 3
#: How colours look without one kind of cones: the matrices of Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
}
#: A difference in CIE Lab that is seen at a glance; 2.3 is just noticeable (Mahy, Van Eycken and Oosterlinck 1994).
SEEN = 3 * 2.3


def colours(name):
    body = re.search(rf"export const {name} = {{(.*?)}};", static("theme.js"), re.S)[1]
    return dict(re.findall(r'(\w+): "(#[0-9a-f]{6})"', body))


def linear(colour):
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def lab(rgb):
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
    ratio = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_palette_is_small():
    assert len(colours("FAMILY")) <= 10
    assert len(colours("PALE")) == 2


def test_every_family_is_visible_on_light_and_on_dark_ground():
    grounds = re.findall(r"--panel: (#[0-9a-f]{6})", static("page.css"))
    assert len(grounds) == 2
    for name, colour in colours("FAMILY").items():
        for ground in grounds:
            low, high = sorted((luminance(colour), luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= CONTRAST, (name, ground)


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_families_differ(sight):
    seen = {name: lab(SIGHT[sight] @ linear(colour)) for name, colour in (colours("FAMILY") | colours("PALE")).items()}
    for a, b in combinations(seen, 2):
        assert np.linalg.norm(seen[a] - seen[b]) >= SEEN, (a, b)
