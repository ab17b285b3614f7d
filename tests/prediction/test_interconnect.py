"""Networks in free text, and nodes of another size than the cluster's."""

import pytest

from lumos.prediction.interconnect import row_cluster, stated_network

HUNDRED, FOUR_HUNDRED = 12.5e9, 50e9  # bytes/s of links of 100 and 400 Gb/s


@pytest.mark.parametrize(
    ("text", "nics", "each"),
    [
        ("4x100Gb RoCE between nodes", 4, HUNDRED),
        ("1600 Gbps node-node RoCE", 8, 25e9),
        ("NVLink + RDMA 400 Gb/s per GPU; H100 96GB HBM2e 2.4TB/s, 500W", 8, FOUR_HUNDRED),
        ("NVLink in node; 4 OmniPath links per node", 4, HUNDRED),
        ("8 NDR ports", 8, FOUR_HUNDRED),
        ("NVLink 900 GB/s | Storage: 2x NDR 400Gb/s, Compute: 8x CX-7 IB NDR 400Gb/Sec, Management: 100Gb/s NIC", 8, FOUR_HUNDRED),
        ("PCIe Gen4 | BF3 200Gbps for NS and 2xBF3 400Gbps for EW", 2, FOUR_HUNDRED),
        ("200 GB/s network", 8, 25e9),  # a large B means bytes
        ("NVLink, 4x HDR100", 4, HUNDRED),
        ("NVSwitch, 2 x 25 GbE", 2, 3.125e9),
        ("2 ConnectX-7 per GPU", 16, FOUR_HUNDRED),
        ("1x 400Gb/s per GPU", 8, FOUR_HUNDRED),
        ("EFA 3200 Gbps", 8, FOUR_HUNDRED),  # no port is as fast
    ],
)
def test_links_and_their_rate(text, nics, each):
    assert stated_network(text, 8, 8) == (nics, each, True)


@pytest.mark.parametrize(
    "text", ["", "NVLink", "18x 5th Gen NVLink, 14.4 TB/s aggregated bandwidth", "XGMI | Ethernet", "PCIe-NIC: 500 GB/s"]
)
def test_texts_without_a_rate_between_nodes(text):
    assert stated_network(text, 8, 8) is None


def read(text: str, devices: int, gpu: str = "a100-80gb", per_node: int | None = None):
    notes = []
    return row_cluster(gpu, per_node, text, devices, notes), {note.code for note in notes}


def test_a_network_that_is_not_understood_is_said_where_it_matters():
    assert read("XGMI | Ethernet", 16)[1] == {"network-not-understood"}
    assert read("XGMI | Ethernet", 8)[1] == set()  # one node
    assert read("Slingshot-11", 16)[1] == {"network-not-understood"}
    assert read("100Gb/s Ethernet", 16)[1] == {"network-links"}
    assert read("4 OmniPath links", 16)[1] == {"row-network"}


def test_the_trays_of_a_rack_are_one_domain():
    cluster, codes = read("", 72, "gb200", 4)
    assert (cluster.node.devices, cluster.node.nics, codes) == (72, 72, {"row-tray"})
    stated, codes = read("NVLINK Gen5 1800 GB/s + NVSWITCH Gen5 | 4x ConnectX-7 IB NDR 400Gb/s", 144, "gb200", 4)
    assert (stated.node.nics, stated.node.nic_bytes_per_s, "row-network" in codes) == (72, FOUR_HUNDRED, True)  # four a tray
    assert read("72x ConnectX-7", 144, "gb200")[0].node.nics == 72
    eight = read("", 72, "gb200", 8)[0].node  # no tray: nodes of their own
    assert (eight.devices, eight.nics) == (8, 8)
