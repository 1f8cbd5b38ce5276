from relbo.lab.report.html import Html, render, table, tag

HOSTILE = "<script>alert('x')</script>&\"quoted\""


def test_text_is_escaped_and_html_is_not():
    assert tag("p", HOSTILE) == "<p>&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;quoted&quot;</p>"
    assert tag("p", tag("b", "1 < 2")) == "<p><b>1 &lt; 2</b></p>"
    assert render("a&", Html("<br>")) == "a&amp;<br>"


def test_attributes_are_escaped():
    assert tag("img", alt=HOSTILE, class_="c") == (
        '<img alt="&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;quoted&quot;" class="c">'
    )
    assert tag("meta", http_equiv="x", name="y") == '<meta http-equiv="x" name="y">'


def test_a_string_operation_on_html_is_plain_text_again():
    assert render(tag("b", "x") + "<i>") == "&lt;b&gt;x&lt;/b&gt;&lt;i&gt;"


def test_table_escapes_cells_and_names_its_box():
    found = table([HOSTILE, "b"], [["<u>", "1"]], caption="<what>", numeric={1})
    assert "<script" not in found and "<u>" not in found
    assert 'aria-label="&lt;what&gt;"' in found and '<td class="number">1</td>' in found
