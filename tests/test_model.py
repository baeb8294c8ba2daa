"""Facts about devices."""

from __future__ import annotations

from whyidle.model import DeviceInfo, Facts

MI300 = DeviceInfo(name="AMD Instinct MI300X", sms=304)


def test_a_device_that_is_not_listed_is_like_the_listed_ones_only_if_those_are_alike() -> None:
    alike = Facts(devices={(0, 0): MI300, (0, 1): MI300, (1, 0): DeviceInfo(name="other")})
    mixed = Facts(devices={(0, 0): MI300, (0, 1): DeviceInfo(name="AMD Instinct MI210", sms=104)})
    assert alike.device(0, 5) == MI300
    assert mixed.device(0, 5) == DeviceInfo()
    assert mixed.device(0, 1).sms == 104
    assert alike.device(2, 0) == DeviceInfo()
