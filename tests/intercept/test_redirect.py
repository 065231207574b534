"""The redirect rules as text, and the order in which iptables is asked; tests/pod has the kernel obey them."""

import subprocess

import pytest
from typer.testing import CliRunner

from sidecar.cli import app
from sidecar.config import SettingsError
from sidecar.intercept.packet_filter import RedirectError, Run, install, remove
from sidecar.intercept.redirect import Redirect, read_resolvers, removal

REDIRECT = Redirect(resolvers=("10.0.0.53", "fd00::53"))


def test_everything_but_the_sidecar_and_the_pod_itself_is_redirected() -> None:
    assert REDIRECT.text(4, "nat", 0) == (
        "*nat\n"
        ":TITO_REDIRECT - [0:0]\n"
        "-A TITO_REDIRECT -m owner --uid-owner 1337 -j RETURN\n"
        "-A TITO_REDIRECT -m addrtype --dst-type LOCAL -j RETURN\n"
        "-A TITO_REDIRECT -p tcp -j REDIRECT --to-ports 8081\n"
        "-I OUTPUT 1 -j TITO_REDIRECT\n"
        "COMMIT\n"
    )


def test_nothing_but_dns_leaves_by_another_way_and_the_control_plane_is_shut() -> None:
    rules = [line.removeprefix("-A TITO_EGRESS ") for line in REDIRECT.text(6, "filter", 1).splitlines()]
    assert rules == [
        "*filter",
        ":TITO_EGRESS - [0:0]",
        "-m owner --uid-owner 1337 -j RETURN",
        "-p tcp -m addrtype --dst-type LOCAL -m tcp --dport 8801 -j REJECT --reject-with tcp-reset",
        "-p tcp -m tcp --sport 8801 -m owner --socket-exists -j DROP",
        "-m addrtype --dst-type LOCAL -j RETURN",
        "! -p udp -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        "-p ipv6-icmp -m icmp6 --icmpv6-type router-solicitation -j RETURN",
        "-p ipv6-icmp -m icmp6 --icmpv6-type neighbour-solicitation -j RETURN",
        "-p ipv6-icmp -m icmp6 --icmpv6-type neighbour-advertisement -j RETURN",
        "-d fd00::53 -p udp -m udp --dport 53 -j RETURN",
        "-p tcp -j REJECT --reject-with tcp-reset",
        "-j DROP",
        "-D OUTPUT -j TITO_EGRESS",
        "-I OUTPUT 1 -j TITO_EGRESS",
        "COMMIT",
    ]


def test_ports_and_uid_are_the_ones_given() -> None:
    redirect = Redirect(port=1, control_port=2, uid=3)
    assert "--to-ports 1\n" in redirect.text(4, "nat", 0)
    assert "--dport 2 " in redirect.text(4, "filter", 0)
    assert "--dport 53" not in redirect.text(4, "filter", 0), "no resolver, no DNS"
    assert all("--uid-owner 3 " in redirect.text(4, table, 0) for table in ("nat", "filter"))


def test_resolvers_are_the_addresses_that_resolv_conf_names() -> None:
    text = (
        "# nameserver 1.1.1.1\nsearch x\nnameserver 10.0.0.53\nnameserver\tfe80::1%eth0 # x\nnameserver nonsense\n"
    )
    assert read_resolvers(text + "nameserver\nnameserver 10.0.0.53") == ("10.0.0.53", "fe80::1")


class Tables:
    """Stands in for iptables: answers ``-S`` with ``listed`` and keeps what restore was given."""

    def __init__(self, listed: str = "-P OUTPUT ACCEPT\n") -> None:
        self.listed = listed
        self.restored: list[tuple[str, str]] = []

    def run(self, command: list[str], text: str) -> subprocess.CompletedProcess[str]:
        if command[0].endswith("-restore"):
            assert "--noflush" in command, "the tables are not ours alone"
            self.restored.append((command[0], text))
            return subprocess.CompletedProcess(command, 0, "", "")
        return subprocess.CompletedProcess(command, 0, self.listed, "")


def test_the_filter_is_shut_before_the_redirect_opens_in_both_families() -> None:
    tables = Tables()
    install(REDIRECT, [4, 6], tables.run)
    assert [(program, text.partition("\n")[0]) for program, text in tables.restored] == [
        ("iptables-restore", "*filter"),
        ("iptables-restore", "*nat"),
        ("ip6tables-restore", "*filter"),
        ("ip6tables-restore", "*nat"),
    ]


def test_undo_removes_chains_that_are_there_and_asks_for_nothing_else() -> None:
    nothing = Tables()
    remove([4, 6], nothing.run)
    assert nothing.restored == []
    listed = "-N TITO_REDIRECT\n-A OUTPUT -j TITO_REDIRECT\n-A OUTPUT -j TITO_REDIRECT\n-A OUTPUT -j OTHER\n"
    there = Tables(listed)
    remove([4], there.run)
    assert there.restored == [("iptables-restore", removal("nat", 2))]
    assert removal("nat", 2) == (
        "*nat\n-D OUTPUT -j TITO_REDIRECT\n-D OUTPUT -j TITO_REDIRECT\n-F TITO_REDIRECT\n-X TITO_REDIRECT\nCOMMIT\n"
    )


def _missing(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    raise FileNotFoundError(command[0])


def _denied(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(command, 4, "", "Permission denied (you must be root)")


@pytest.mark.parametrize(
    ("run", "message"), [(_missing, "iptables is not installed"), (_denied, "you must be root.*NET_ADMIN")]
)
def test_a_failure_says_what_is_needed(run: Run, message: str) -> None:
    with pytest.raises(RedirectError, match=message):
        install(REDIRECT, [4], run)


def test_the_command_can_show_the_rules_without_writing_them(tmp_path: object) -> None:
    result = CliRunner().invoke(app, ["redirect-init", "--show", "--port", "9"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "# IPv4\n*filter" in result.stdout
    assert "--to-ports 9\n" in result.stdout
    with pytest.raises(SettingsError, match="--resolv-conf '/no/such'"):
        CliRunner().invoke(app, ["redirect-init", "--resolv-conf", "/no/such"], catch_exceptions=False)
