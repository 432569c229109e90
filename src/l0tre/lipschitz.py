"""placeholder"""

from l0tre.book import Book


def lipschitz_judge(book: Book):
    return None
