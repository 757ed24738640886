"""Generated pages are committed as the code would write them now."""

from __future__ import annotations

from scripts import generate_chart, generate_roles, generate_services
from scripts.generate_docs import DOCS, generated, settings_classes, settings_text
from services._runtime.service.settings import CommonSettings


def test_generated_pages_are_fresh() -> None:
    stale = [str(path) for path, text in generated().items() if path.read_text() != text]

    assert stale == [], "run `make docs` and commit what it wrote"


def test_the_users_of_the_bus_are_those_that_services_declare() -> None:
    assert generate_roles.PAGE.read_text(encoding="utf-8") == generate_roles.text(), "run `make docs`"


def test_images_compose_kubernetes_and_alerts_have_what_services_declare() -> None:
    assert generate_services.stale() == [], "run `make docs` and commit what it wrote"


def test_the_helm_chart_and_its_table_of_values_are_fresh() -> None:
    assert generate_chart.stale() == [], "run `make docs` and commit what it wrote"


def test_every_setting_is_on_the_page_once() -> None:
    text = settings_text()

    for cls in [CommonSettings, *settings_classes()]:
        for field in cls.model_fields:
            assert text.count(f"`{cls.variable(field)}`") == 1
            assert cls.model_fields[field].description, f"{cls.__name__}.{field} has no description"


def test_every_service_is_on_the_page() -> None:
    names = {path.parent.name for path in (DOCS.parent / "services").glob("[!_]*/**/settings.py")}

    assert {cls.service.replace("_", "") for cls in settings_classes()} == names
