"""Faults of server/rebuild that its own tests have to find, as in tests/server/run/plants.py."""

PLANTS = {
    "repair_from_a_site_that_lies": [
        ("server/rebuild/rebuild.cc", "  if (sent == expected) {", "  if (sent.version == expected.version) {")],
    "one_site_is_believed": [
        ("server/rebuild/rebuild_rules.cc", "remembered[one.first] >= size_t{kAgree}",
         "remembered[one.first] >= size_t{1}")],
    "site_that_lied_is_believed_again": [
        ("server/rebuild/rebuild_rules.cc", "  distrusted_.insert(site);\n", "")],
    "fragment_of_a_site_that_left_is_taken_for_whole": [
        ("server/rebuild/rebuild.cc", "return one.second.from == site && !one.second.whole;",
         "return one.second.from == site && one.second.from != site;")],
}
