"""Models of a small shop, with keys."""

from django.db import models


class Team(models.Model):
    """A team; all keys are known without reading a row."""

    name = models.CharField(max_length=40)

    class Lookaside:
        keys = ["team:{id}", "all_teams"]


class User(models.Model):
    """A user. The keys of the table of `teams` are in the settings."""

    email = models.CharField(max_length=300, unique=True)
    name = models.CharField(max_length=40, default="")
    teams = models.ManyToManyField(Team)

    class Lookaside:
        keys = ["user:{id}", "user_by_email:{email}"]


class Employee(User):
    """A user with a row in another table, too. It has the keys of its parent."""

    salary = models.IntegerField(default=0)


class Post(models.Model):
    """Django deletes it with its author; when its team is deleted, it has none."""

    author = models.ForeignKey(User, models.CASCADE)
    team = models.ForeignKey(Team, models.SET_NULL, null=True)
    text = models.TextField()

    class Lookaside:
        keys = ["post:{pk}", "posts_of:{author}", "posts_of_team:{team_id}"]


class AllTypes(models.Model):
    """A column of each type that keys can have."""

    small = models.SmallIntegerField(null=True)
    price = models.DecimalField(max_digits=10, decimal_places=2, null=True)
    label = models.CharField(max_length=40, null=True)
    is_new = models.BooleanField(null=True)
    octets = models.BinaryField(max_length=20, null=True)
    at = models.DateTimeField(null=True)
    clock = models.TimeField(null=True)
    day = models.DateField(null=True)
    token = models.UUIDField(null=True)
    absent = models.IntegerField(null=True)

    class Lookaside:
        keys = [f"orm:{name}:{{{name}}}" for name in ("small", "price", "label", "is_new", "at", "clock", "day")] + [
            "orm:token:{token}",
            "orm:absent:{absent}",
        ]
