// Pages that a server sends, and goes on sending.

function follow() {}
