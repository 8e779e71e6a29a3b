"""Engines of others as guests: their programs are started, watched and asked over HTTP (`guest.Guest`)."""
