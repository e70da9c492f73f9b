"""Speed against peers and scores over seeds; not part of the installed package."""
