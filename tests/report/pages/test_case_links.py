from sgpmil.report.pages.case_links import case_address, link_cases

PAGE = (
    '<p class="cases" hidden></p><td><span data-case="cases/a%20b.html">a b &lt;i&gt;</span></td>'
)


def test_names_become_links_where_the_file_exists(tmp_path):
    assert link_cases(PAGE, tmp_path) == PAGE
    file = tmp_path / "cases" / "a b.html"
    file.parent.mkdir()
    file.touch()
    linked = link_cases(PAGE, tmp_path)
    link = '<a href="cases/a%20b.html">a b &lt;i&gt;</a>'
    assert linked == (
        f'<p class="cases">Case reports: {link}</p>'
        f'<td><span data-case="cases/a%20b.html">{link}</span></td>'
    )
    assert link_cases(linked, tmp_path) == linked
    file.unlink()
    assert link_cases(linked, tmp_path) == PAGE


def test_the_head_names_the_first_of_many(tmp_path):
    names = [f"s{i:02d}" for i in range(15)]
    (tmp_path / "cases").mkdir()
    for name in names:
        (tmp_path / "cases" / f"{name}.html").touch()
    marks = "".join(f'<span data-case="{case_address(name)}">{name}</span>' for name in names)
    head = link_cases('<p class="cases" hidden></p>' + marks, tmp_path).split("</p>")[0]
    assert head.count('<a href="cases/') == 12
    assert "and 3 more" in head


def test_an_address_is_safe_in_an_attribute(tmp_path):
    assert not set(case_address("a\"b'<i>&c")) & set("\"'<>&")
